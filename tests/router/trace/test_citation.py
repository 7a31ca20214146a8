"""Citations: a report is cited to its source sentences in any script, and an answer to those
that hold it.
"""

import gc
import time
from collections.abc import Callable

import pytest

from router.edge.grpc.convert import answer_to_proto
from router.edge.rendering import cited_answer
from router.folding import fold, sought
from router.protocol import Passage, Report
from router.protocol.scoring import exact_match, holds, token_f1
from router.trace import Conversation, Execution, Trajectory
from router.trace.attribution import attribute
from router.trace.citation import Reading, cite
from router.trace.values import SearchRecord
from tests.router.store.stored import run

OTHERS = (
    Passage("other-1", "上海", "上海是中国的城市，人口很多，位于长江口，建于元代。"),
    Passage("other-2", "大阪", "大阪は日本の都市で、江戸時代から商業が盛んだった。"),
    Passage("other-3", "Kestrel", "Kestrel is a town of the north that Ada Lind built in 1872."),
)
TEXTS = {
    # (passage, a point that an executor copied, its answer, the sentence that says it)
    "Chinese": (
        "东京是日本的首都。清华大学于1911年在北京创立，首任校长是唐国安。它有很多学生。",
        "清华大学于1911年在北京创立，首任校长是唐国安",
        "唐国安",
        "清华大学于1911年在北京创立，首任校长是唐国安。",
    ),
    "Japanese": (
        "京都大学は古い。湯川秀樹は1949年にノーベル物理学賞を受賞した。彼は京都に住んだ。",
        "湯川秀樹は1949年にノーベル物理学賞を受賞した。",
        "湯川秀樹",
        "湯川秀樹は1949年にノーベル物理学賞を受賞した。",
    ),
    "Korean": (
        "서울은 큰 도시이다. 훈민정음은 세종대왕이 1443년에 창제하였다. 한글날은 가을이다.",
        "훈민정음은 세종대왕이 1443년에 창제하였다",
        "세종대왕",
        "훈민정음은 세종대왕이 1443년에 창제하였다.",
    ),
    "Thai": (
        ("กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย สถาปนาเมื่อ พ.ศ. ๒๓๒๕ " "โดยพระบาทสมเด็จพระพุทธยอดฟ้าจุฬาโลก"),
        "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย สถาปนาเมื่อ พ.ศ. 2325",
        "พระบาทสมเด็จพระพุทธยอดฟ้าจุฬาโลก",
        ("กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย สถาปนาเมื่อ พ.ศ. ๒๓๒๕ " "โดยพระบาทสมเด็จพระพุทธยอดฟ้าจุฬาโลก"),
    ),
    "Lao": ("ວຽງຈັນເປັນນະຄອນຫຼວງຂອງລາວ", "ວຽງຈັນເປັນນະຄອນຫຼວງ", "ວຽງຈັນ", "ວຽງຈັນເປັນນະຄອນຫຼວງຂອງລາວ"),
    "Khmer": ("ភ្នំពេញជារាជធានីរបស់ប្រទេសកម្ពុជា។", "ភ្នំពេញជារាជធានីរបស់ប្រទេសកម្ពុជា", "ភ្នំពេញ", "ភ្នំពេញជារាជធានីរបស់ប្រទេសកម្ពុជា។"),
    "Burmese": ("နေပြည်တော်သည်မြန်မာနိုင်ငံ၏မြို့တော်ဖြစ်သည်။", "နေပြည်တော်သည်မြို့တော်ဖြစ်သည်", "နေပြည်တော်", "နေပြည်တော်သည်မြန်မာနိုင်ငံ၏မြို့တော်ဖြစ်သည်။"),
    "Hindi": ("ताजमहल आगरा में है। इसे शाहजहाँ ने बनवाया।", "इसे शाहजहाँ ने बनवाया", "शाहजहाँ", "इसे शाहजहाँ ने बनवाया।"),
    "mixed": (
        "iPhone手机由Steve Jobs于2007年发布。它很贵。",
        "iPhone手机由Steve Jobs于２００７年发布",
        "steve jobs",
        "iPhone手机由Steve Jobs于2007年发布。",
    ),
    "ligatures": ("An o\ufb03ce was in Tarn.", "An office was in Tarn", "office", "An o\ufb03ce was in Tarn."),
    "decomposed": ("Zu\u0308rich is Rene\u0301's.", "Zürich is René's.", "Zürich", "Zu\u0308rich is Rene\u0301's."),
    "hidden": (
        "Ada co\u00adoper\u00adated with O\u200brrin.",
        "Ada cooperated with Orrin.",
        "Orrin",
        "Ada co\u00adoper\u00adated with O\u200brrin.",
    ),
    "signs": ("O’Neill’s “Ice–Man” opened.", "O'Neill's \"Ice-Man\" opened.", "O'Neill", "O’Neill’s “Ice–Man” opened."),
}  # fmt: skip


def found_by(point: str, answer: str, *passages: Passage) -> Trajectory:
    """Return a question that one executor answered from these passages."""
    report = Report(answer, (point,))
    execution = Execution("?", report, "reported", (SearchRecord("?", passages),), Conversation(()))
    return Trajectory(answer, "answered", (execution,))


@pytest.mark.parametrize("name", TEXTS)
async def test_an_answer_in_any_script_has_its_source(name: str) -> None:
    """The quote is verbatim, over gRPC and for chat tools."""
    text, point, answer, sentence = TEXTS[name]
    result = found_by(point, answer, *OTHERS, Passage("right", "?", text))
    (cited,) = (await answer_to_proto(run("run-1", result=result))).citations
    assert (cited.passage_id, cited.quote) == ("right", sentence)
    assert cited.quote in text
    assert [at.quote for at in (await cited_answer(run("run-1", result=result))).citations] == [
        sentence
    ]


@pytest.mark.parametrize("name", TEXTS)
def test_a_wrong_answer_in_any_script_is_traced_to_the_executor(name: str) -> None:
    """The executor was shown the right one and did not report it."""
    text, _, answer, sentence = TEXTS[name]
    traced = attribute(
        run("run-1", result=found_by("so", "?", *OTHERS, Passage("right", "?", text))), [answer]
    )
    assert traced is not None
    assert (traced.lost_by, [seen.at and seen.at.quote for seen in traced.sightings]) == (
        "reading",
        [sentence],
    )
    right = attribute(run("run-1", result=found_by("so", answer, *OTHERS)), [answer])
    assert right is not None
    assert right.right


@pytest.mark.parametrize(
    "point",
    [
        "清华大学于1912年在北京创立，首任校长是唐国安",  # another number
        "清华大学在北京有很多图书馆和实验室，也有医院",
        "南京大学的图书馆很大，藏书丰富，学生众多",
        "湯川秀樹は東京で生まれ、大学で物理を教えていた",
    ],
)
def test_an_answer_in_no_passage_has_no_source(point: str) -> None:
    """Common characters are no evidence."""
    passages = [*OTHERS, *(Passage(name, "?", text) for name, (text, *_) in TEXTS.items())]
    assert cite([point], passages) == [[]]


@pytest.mark.parametrize(
    ("text", "answer", "held"),
    [
        ("He lives in Annapolis.", "Ann", False),
        ("It has 18711 people.", "1871", False),
        ("It has 350 people.", "3", False),
        ("It was founded in 1871.Then it grew.", "1871", True),
        ("founded in 1871¹", "1871", True),
        ("founded in 1871¹", "18711", False),
        ("10⁶ people", "106", False),
        ("始建于１８７１年", "1871", True),
        ("始建于18711年", "1871", False),
        ("٣ books of the year ١٩٩٩", "1999", True),
        ("Vitamin A is good.", "vitamin A", True),
        ("Vitamin C is good.", "Vitamin A", False),
        ("Article 5 (b) applies.", "Article 5 (a)", False),
        ("The Lord of the Rings", "the lord of the rings", True),
        ("12,000 people", "12000", True),
        ("Born in the U.S. to a Ph.D.", "US", True),
        ("İSTANBUL", "istanbul", True),
        ("Straße", "STRASSE", True),
        ("कि", "का", False),
        ("ガーデン", "ｶﾞｰﾃﾞﾝ", True),
        ("カ", "ガ", False),
        ("กี", "ก", False),  # a letter with its vowel
        ("anything", "", False),
        ("anything", "。", False),
    ],
)
def test_scripts_with_words_match_words_and_others_match_characters(
    text: str, answer: str, held: bool
) -> None:
    assert holds([text], answer) is held


def test_answers_without_spaces_are_scored_by_their_characters() -> None:
    """Punctuation and width make no difference. English is scored as the official scripts do."""
    assert exact_match("《北京》。", ["北京"])
    assert exact_match("１８７１年", ["1871年"])
    assert not exact_match("北京市", ["北京"])
    assert token_f1("北京市", ["北京"]) == pytest.approx(0.8)
    assert not exact_match("“Paris”", ["Paris"])


HOSTILE = {
    "ligature": "\ufdfa",
    "squared words": "\u3316",
    "marks in disorder": "\u0301\u0316",
    "marks with joiners": "\u0301\u034f\u0316\u034f",
    "jamo": "\u1112\u1161\u11ab",
    "word": "a",
    "apostrophes": "'s.",
    "full stops": ". ",
    "quotes": ".''''\"\"",
    "lines": " \n",
    "digits": "1,234'5",
    "raised": "1¹",
    "sentences": "A. b? C! ",
    "Chinese": "東京是。",
    "Thai": "กี้",
    "expanding case": "ΐ",
    "sentences that go on": "It {}. ",
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE)
def test_folding_and_citing_take_bounded_space_and_time(piece: str) -> None:
    """NFKC and case folding may lengthen a text.

    Ten times the text must not take a hundred times as long.
    """
    text = "a" + "".join(map(piece.format, range(4_000)))
    assert len(fold(text)) <= 6 * len(text) + 200

    def cited(text: str) -> object:
        return cite([text[:200], "It is b."], [Passage("1", "?", text)])

    def seconds(work: Callable[[str], object], length: int) -> float:
        begun = time.thread_time()
        work(text[:length])
        return time.thread_time() - begun

    for work in (fold, lambda text: Reading(text).places(sought(text[:300])), cited):
        short = max(min(seconds(work, len(text) // 10) for _ in range(3)), 0.0005)
        assert min(seconds(work, len(text)) for _ in range(2)) <= 50 * short


def test_points_of_very_many_sentences_have_no_citation() -> None:
    """Each sentence is compared with each passage.

    Text after very many sentences has no citation either.
    """
    passage = Passage("1", "?", "Ana Ruiz was born in 1911.")
    point = "Ana Ruiz was born in 1911. "
    many, few, *_ = cite([point * 100, point * 60, *[point * 60] * 4], [passage])
    assert not many
    assert few
    assert [bool(cited) for cited in cite([point * 60] * 5, [passage])] == [True] * 4 + [False]


def test_cached_readings_are_few_objects_for_the_garbage_collector() -> None:
    """A full collection stops all threads while it visits every tracked object, including each
    member of a set. Thousands of readings are cached.
    """
    reading = Reading(" ".join(f"City {number} has {number} streets." for number in range(1000)))
    assert reading.places(" has 999 streets ") == [999]
    assert len(reading.terms) == 1000
    for _ in range(3):  # a tuple is untracked once its members are
        gc.collect()
    held = (reading.sentences, reading.folded, reading.terms, *reading.terms, reading._in_one)
    assert not any(map(gc.is_tracked, held))


def test_places_of_a_text_are_numbers_of_sentences() -> None:
    """A text may be in several sentences, or twice in the same. One that no sentence contains may
    go on in the next.
    """
    reading = Reading("Ann met Ann. Bob left. Then Ann left Bob. End.")
    assert reading.places(sought("Ann")) == [0, 2]
    assert reading.places(sought("Bob left")) == [1]
    assert reading.places(sought("left then")) == [1]
    assert reading.places(sought("left end")) == []
    assert reading.places("") == []
