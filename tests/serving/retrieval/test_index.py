"""Searching an index by meaning and by word, and refusing damaged or wrong ones."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from router.errors import BadCorpus, BadIndex
from serving.retrieval.build import build_index
from serving.retrieval.dense import Hit
from serving.retrieval.embedder import MiniLM
from serving.retrieval.index import Index, fuse
from serving.retrieval.lexical import LEXICAL, LexicalIndex, write_lexical
from serving.retrieval.manifest import read_manifest
from tests.serving.retrieval.conftest import WriteCorpus
from tests.serving.retrieval.test_build import Counting

QUERIES = ["Which pet hunts mice?", "the red planet", "Who makes honey?", "largest creature ever"]
NEAREST = ["cat", "mars", "bee", "whale"]


def ids(index: Index, embedder: MiniLM, queries: Sequence[str], top_k: int) -> list[list[str]]:
    results = index.search(embedder.embed(queries, queries=True), queries, top_k)
    return [[passage.id for passage in passages] for passages in results]


def test_the_nearest_passage_comes_first(index: Index, embedder: MiniLM) -> None:
    """Passages are complete, best first, with cosines as scores, for any batch and `top_k`."""
    found = index.search(embedder.embed(QUERIES, queries=True), QUERIES, 2)
    assert [passages[0].id for passages in found] == NEAREST
    assert (found[1][0].title, found[1][0].text) == (
        "Mars",
        "Mars is the fourth planet from the Sun and looks red.",
    )
    assert all(1 > first.score > second.score for first, second in found)
    alone = [ids(index, embedder, [query], 2)[0] for query in QUERIES]
    assert (
        ids(index, embedder, QUERIES, 2)
        == [found[:2] for found in ids(index, embedder, QUERIES, 5)]
        == alone
    )
    assert sorted(ids(index, embedder, ["anything"], 100)[0]) == [
        "bee",
        "cat",
        "mars",
        "whale",
        "zx81",
    ]


def test_copies_of_a_text_do_not_crowd_out_others(
    write_corpus: WriteCorpus, tmp_path: Path, embedder: MiniLM
) -> None:
    """Fifteen copies of the nearest text count as one result."""
    copies = [
        {"id": f"copy {number}", "title": "Cat", "text": "The cat hunts mice."}
        for number in range(15)
    ]
    corpus = write_corpus([*copies, {"id": "dog", "title": "Dog", "text": "The dog hunts foxes."}])
    build_index([corpus], tmp_path / "index", embedder)
    assert ids(Index.open(tmp_path / "index", embedder), embedder, ["Who hunts mice?"], 3) == [
        ["copy 0", "dog"]
    ]


def test_word_statistics_find_names(animals: Path, tmp_path: Path, embedder: MiniLM) -> None:
    """With BM25, an exact name and a paraphrase are both first; unknown words change nothing."""
    assert build_index([animals], tmp_path / "index", embedder, lexical=True).manifest.lexical
    index = Index.open(tmp_path / "index", embedder, verify=True)
    assert [found[0] for found in ids(index, embedder, ["ZX81", *QUERIES, "??"], 1)][:5] == [
        "zx81",
        *NEAREST,
    ]


def test_only_rows_that_share_a_word_are_found(tmp_path: Path) -> None:
    """Rows are ranked; queries of stop words or unknown words find nothing."""
    write_lexical(tmp_path, ["red planet", "the honey of bees", "red red honey"])
    index = LexicalIndex.open(tmp_path)
    results = index.search(["bees honey", "planet", "the of", "qqq", ""], 5)
    assert [[hit.row for hit in hits] for hits in results] == [[1, 2], [0], [], [], []]
    assert index.search(["", "the"], 5) == [[], []]


def test_words_without_spaces_are_found(tmp_path: Path) -> None:
    """Chinese and Japanese words are found by pairs of characters."""
    write_lexical(
        tmp_path,
        [
            "東京は日本の首都です。",
            "北京是中国的首都，人口很多",
            "The GPUサーバー of 京都大学",
            "Tokyo is large.",
        ],
    )
    index = LexicalIndex.open(tmp_path)
    results = index.search(
        ["東京とは", "中国人口", "京都大学のサーバー", "首都", "gpu", "tokyo"], 4
    )
    assert [[hit.row for hit in hits] for hits in results] == [[0], [1], [2], [0, 1], [2], [3]]


def test_words_that_cannot_be_counted_are_refused(tmp_path: Path) -> None:
    """A corpus of stop words and a folder without statistics are refused."""
    with pytest.raises(BadCorpus, match="only stop words"):
        write_lexical(tmp_path, ["the", "of it"])
    with pytest.raises(
        BadIndex, match=r"by another version of rolegate; run `rolegate index build`"
    ):
        LexicalIndex.open(tmp_path)
    write_lexical(tmp_path, ["red planet"])
    next((tmp_path / LEXICAL).glob("*.json")).unlink()
    with pytest.raises(BadIndex, match="cannot be read by bm25s"):
        LexicalIndex.open(tmp_path)


def test_words_of_one_character_are_found(tmp_path: Path) -> None:
    """Single letters and digits distinguish texts; the letter "a" is no stop word."""
    names = [
        "Vitamin {}",
        "Part {} of the code",
        "Article 5 ({}) of the act",
        "Register {} of the cities",
    ]
    texts = [
        f"{name.format(character)}. A text is here, and it is about a law."
        for name in names
        for character in "ABC37"
    ]
    write_lexical(tmp_path, texts)
    queries = [
        f"What does {name.format(character)} say?" for name in names for character in "ABC37"
    ]
    results = LexicalIndex.open(tmp_path).search(queries, 1)
    assert [hits[0].row for hits in results] == list(range(len(texts)))


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("東京は日本の首都です。", "東京とは"),
        ("กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย", "เมืองหลวงของไทย"),
        ("ວຽງຈັນເປັນນະຄອນຫຼວງຂອງລາວ", "ນະຄອນຫຼວງ"),
        ("ភ្នំពេញជារាជធានីរបស់ប្រទេសកម្ពុជា", "រាជធានី"),
        ("နေပြည်တော်သည်မြန်မာနိုင်ငံ၏မြို့တော်ဖြစ်သည်", "မြို့တော်"),
        ("서울은 대한민국의 수도이다.", "수도는 서울"),
        ("ｶﾀｶﾅとガーデン", "カタカナ"),
        ("The ﬁnal oﬃce", "final office"),
        ("Cafe\u0301 in Zu\u0308rich", "café zürich"),
        ("in １８７１ built", "1871"),
        ("co\u00adoper\u00adation zero\u200bwidth", "cooperation zerowidth"),
        ("हिन्दी की किताब", "किताब"),
        ("日本のGPUサーバー", "gpu"),
    ],
)
def test_other_writings_of_the_same_words_are_found(tmp_path: Path, text: str, query: str) -> None:
    """Scripts without spaces match by pairs of characters, others by folded words."""
    write_lexical(
        tmp_path, [text, "Tokyo is large.", "काम और कुछ", "北京是中国的", "น้ำตก", "부산 바다"]
    )
    (found,) = LexicalIndex.open(tmp_path).search([query], 1)
    assert [hit.row for hit in found] == [0]


def test_a_row_scores_the_sum_of_its_reciprocal_ranks() -> None:
    """Second in both rankings beats first in one; scores and empty rankings do not count."""
    fused = fuse([[Hit(1, 0.9), Hit(2, 0.1)], [Hit(3, 50.0), Hit(2, 49.0)]], top_k=3)
    assert [hit.row for hit in fused] == [2, 1, 3]
    assert [hit.score for hit in fused] == pytest.approx([2 / 62, 1 / 61, 1 / 61])
    assert [hit.row for hit in fuse([[Hit(4, 0.9), Hit(0, 0.8)], []], top_k=1)] == [4]


def test_the_manifest_describes_the_folder(index_folder: Path, embedder: MiniLM) -> None:
    """The manifest has the embedder, dimension, corpus hash, and size and hash of every file."""
    manifest = read_manifest(index_folder)
    assert (manifest.embedder, manifest.dimension) == (embedder.identity, 384)
    assert (manifest.passages, manifest.lexical, manifest.metric) == (5, False, "inner_product")
    assert (manifest.generation, manifest.chunk_tokens) == ("000001", 200)
    assert set(manifest.files) == {
        "passages.jsonl",
        "offsets.npy",
        "dense.faiss",
        "documents.jsonl",
    }
    assert manifest.corpus_sha256 == manifest.files["passages.jsonl"].sha256


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("manifest.json", None, "index: contains no finished index"),
        ("manifest.json", b'{"form', r"manifest\.json: is damaged"),
        (
            "manifest.json",
            b'{"format":3,"all":"new"}',
            r"manifest\.json: .*another version.*run `rolegate index build` again",
        ),
        ("000001/offsets.npy", None, r"offsets\.npy: is missing"),
        ("000001/dense.faiss", b"x", r"dense\.faiss: has 1 bytes, but the manifest states"),
    ],
)
def test_a_damaged_index_is_refused(
    index_folder: Path, embedder: MiniLM, name: str, content: bytes | None, message: str
) -> None:
    """The message names the file and says what to do."""
    if content is None:
        (index_folder / name).unlink()
    else:
        (index_folder / name).write_bytes(content)
    with pytest.raises(BadIndex, match=message):
        Index.open(index_folder, embedder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"passages": 6}, "disagree on the number of passages"),
        ({"dimension": 768}, "dimension 768"),
    ],
)
def test_a_manifest_of_another_index_is_refused(
    index_folder: Path, embedder: MiniLM, change: dict[str, int], message: str
) -> None:
    """The manifest must agree with the files."""
    changed = msgspec.structs.replace(read_manifest(index_folder), **change)
    (index_folder / "manifest.json").write_bytes(msgspec.json.encode(changed))
    with pytest.raises(BadIndex, match=message):
        Index.open(index_folder, embedder)


def test_altered_passages_are_found(index_folder: Path, embedder: MiniLM) -> None:
    """`verify` finds changes that keep the size; otherwise, the first access does."""
    path = index_folder / "000001" / "passages.jsonl"
    path.write_bytes(path.read_bytes().replace(b'{"', b"\xff\xff"))
    index = Index.open(index_folder, embedder)
    with pytest.raises(
        BadIndex, match=r"000001/passages\.jsonl: damaged \(.*\); run `rolegate index build` again"
    ):
        ids(index, embedder, QUERIES, 1)
    with pytest.raises(BadIndex, match=r"passages\.jsonl: changed after"):
        Index.open(index_folder, embedder, verify=True)


def test_another_embedder_is_refused(index_folder: Path) -> None:
    """The message names both embedders."""
    with pytest.raises(
        BadIndex,
        match=r"built with the embedder all-MiniLM-L6-v2@\w+ .* configured embedder is counting ",
    ):
        Index.open(index_folder, Counting())
