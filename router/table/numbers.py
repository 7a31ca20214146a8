"""Reading of numbers in text: with digits of any script, separators, signs, words for powers of
ten, and units.
"""

import re
from collections.abc import Iterable, Iterator
from decimal import Context, Decimal, localcontext

from router.table.plain_text import folded, normal_text
from router.trace.table import Column

_POWERS: dict[str, int] = {}
for _line in folded("""\
1 十 拾 십
2 hundred hundreds 百 佰 백
3 k thousand thousands thsd tsd tausend tys tysiąc tysiące tysięcy tis tisíc tusen tusind tuhatta
3 duizend millier milliers mila ezer bin ribu nghìn ngàn тыс тысяча тысячи тысяч χιλιάδες
3 ألف ألاف هزار אלף हज़ार พัน 千 仟 천
4 หมื่น 万 萬 만
5 lakh lakhs lac lacs लाख แสน
6 mn mmn mio mln million millions millionen millón millones milhão milhões milione milioni milion
6 miliony milionů milionów miljoen miljon miljoner millioner miljoonaa millió milyon juta triệu
6 млн миллион миллиона миллионов мільйон мільйона мільйонів εκατομμύρια مليون ملايين میلیون
6 מיליון ล้าน
7 crore crores cr करोड़
8 亿 億 억
9 bn billion billions mrd mld mia mds milliard milliards milliarde milliarden milliarder miliardo
9 miliardi miliard miliardy miliardów miljard miljarder miljardia milliárd milyar miliar
9 bilhão bilhões tỷ tỉ млрд миллиард миллиарда миллиардов мільярд мільярда мільярдів δισεκατομμύρια
9 مليار میلیارد
9 מיליארד अरब
12 tn trn trillion trillions billionen billones billioner biljoen biljoner bilion bilionów trilyon
12 triliun trilhão trilhões трлн триллион триллиона триллионов تريليون 兆 조
""").splitlines():
    _power, *_words = _line.split()
    _POWERS |= dict.fromkeys(_words, int(_power))
"""Exponents of the words and characters for powers of ten. Words that mean different powers in
different languages, such as "mil", are left out here.
"""
_LARGE = "万萬만亿億억兆조"
_SMALL = "十拾십百佰백千仟천"
_DIGITS: dict[str, int] = {}
for _value, _digits in enumerate(
    "〇零 一壹 二两兩贰貳 三叁參 四肆 五伍 六陆陸 七柒 八捌 九玖".split()
):
    _DIGITS |= dict.fromkeys(_digits, _value)
_NUMERALS = "".join(_DIGITS)
_WORD_OF_POWER = "|".join(
    sorted((word for word in _POWERS if word not in _LARGE + _SMALL), key=len, reverse=True)
)
_WORD_OF_POWER = rf"(?<![^\W\d_])(?:{_WORD_OF_POWER}|mil(?= mil))(?![^\W\d_])"
_POWERS["mil"] = 3
_POWER = rf"(?:{_WORD_OF_POWER}|(?!千[克米瓦卡伏赫帕]|兆[瓦赫字比帕])[{_LARGE}{_SMALL}])"
_PLAIN_NUMBER = r"(?:\d{1,3}(?:[ ']\d{3})+(?!\d)|\.?\d[\d.,]*)(?:[.,]\d+)?(?:e[-+]?\d{1,2}(?!\d))?"
_NUMBER = re.compile(
    rf"(?<![a-z0-9.])(?<!\d,)[-+]?{_PLAIN_NUMBER}"
    rf"(?:[ -]?{_POWER}|(?<=[{_LARGE}{_SMALL}]) ?\d[\d.,]*)*"
    rf"|[{_NUMERALS}{_LARGE}{_SMALL}]{{2,}}|[{_NUMERALS}十](?![\u3040-\u9fff])"
)
_PART = re.compile(rf"{_PLAIN_NUMBER}|[{_NUMERALS}]|{_POWER}")
_LEFT_POWER = re.compile(rf"[{_LARGE}‰]|\b[mbt] ?[$€£¥]|[$€£¥]\s{{0,3}}(?:[mbt]|mi|bi)\b")
"""Matches a power of ten that no number precedes."""
_GROUPED = re.compile(r"(?:[1-9]\d{0,2}(?:(?:,\d{3})+|(?:\.\d{3}){2,})|\d{1,2}(?:,\d{2})+,\d{3})")
_CURRENCY = r"(?:[$€£¥₹₩₽₺]|\b(?:usd|eur|gbp|chf|inr|rs))"
_LETTER = re.compile(
    rf"(?:{_CURRENCY} ?\d[\d.,]* ?(?:mm?|b|t)|\d ?[mbt](?= ?[$€£¥₹])"
    r"|(?-i:\d ?(?:MM?|B|G)))(?![^\W_])",
    re.IGNORECASE,
)
"""Matches a number with a letter that means a power of ten, such as "5M": next to a currency sign,
or in upper case. An upper-case "G" becomes an unknown word, so that it is not read as grams.
"""
_SIGN = re.compile(
    rf"(?:(?<![\w)])-(?=\S)|\b(?:minus|negative)\b|负|負|零下|マイナス|영하) ?((?:[a-z]{{0,"
    rf"3}}{_CURRENCY})?) ?(?=[\d.])"
)
_NEGATIVE = re.compile(r"(\W{0,4})\((\W{0,4})(\d(?:[\d ']*[.,%])+[\d ']*)\W{0,4}\)\W{0,4}")
"""Matches a negative number that is written in parentheses, as in accounting."""
_IN_PARENTHESES = re.compile(r"\([^()]*\)")
_WORD = re.compile(r"[^\W\d_]+")
_AFTER = re.compile(r"[ -]?([^\W\d_][^\s,;:()/-]*)")
_UNITS = frozenset(
    folded("""
st nd rd th er e º in of as at by per to from total est estimated approx approximately about or
and on for overall percent pct prozent procent процентов people person persons inhabitants
residents citizens employees members students users seats rooms floors votes points goals times
copies units items passengers visitors households einwohner personen mitarbeiter habitants
personnes habitantes personas abitanti persone inwoners osób человек чел years year yr yrs
months days day weeks hours hour h hr hrs min minutes minute s sec seconds jahre ans años лет
km m cm mm nm μm mi mile miles ft foot feet inch inches yd yards kg g mg lb lbs oz t ton tons
tonne tonnes l liter litre liters litres ml gal gallons ha hectares hectare acre acres sq
square cubic km2 km3 m2 m3 cm2 cm3 ft2 mi2 sqm sqft w kw mw gw tw wh kwh mwh gwh twh v kv hz
khz mhz ghz pa hpa kpa mpa c f kph mph knots kb mb gb tb bytes bits px db kcal км м кг usd eur
gbp jpy cny rmb inr krw chf cad aud nzd sek nok dkk rub brl mxn zar try pln czk huf sgd hkd twd
thb dollar dollars us$ euro euros pound pounds yen yuan won rupee rupees rs franc francs руб
рублей zł kr kč ft 人 名 个 個 位 年 月 日 号 元 円 圆 圓 块 美 欧 英 港 韩 加 澳 新 台 户 戸
家 间 間 座 所 栋 棟 层 層 楼 辆 艘 架 枚 件 项 項 条 種 种 类 類 部 册 冊 本 篇 集 季 期 届 回
次 场 場 分 秒 时 時 小 天 周 週 岁 歳 公 平 米 千 克 吨 噸 升 度 瓦 里 尺 票 股 头 頭 章 页 頁
字 以 明 명 개 원 년 월 일 세 층 대 회 위 인 곳 건 점 달 유 엔 킬 미 톤
""").split()
)
_SIGNS = {
    "%": r"%|\b(?:percent|per cent|pct|procent|prozent|pour cent|por ciento|por cento|percento"
    r"|процент\w*)\b|百分|パーセント|퍼센트",
    "$": r"\$|\b(?:usd|dollars?|d[oó]lar(?:es)?|доллар\w*)\b|美元|ドル|달러",
    "€": r"€|\b(?:eur|euros?|евро)\b|欧元|ユーロ",
    "£": r"£|\b(?:gbp|pounds?|sterling)\b|英镑|ポンド",
    "¥": r"¥|\b(?:yen|yuan|jpy|cny|rmb)\b|(?<!公)元|円",
}
"""Signs of percentages and currencies. Each is mapped to a pattern of the ways to write it in a
folded text.
"""
_FORMS = {sign: re.compile(forms) for sign, forms in _SIGNS.items()}
_BOUND = re.compile(
    r"(?:\b(?:not|no|less than|fewer than|more than|at least|at most|up to|under|over|above|below|"
    r"before|after|exceeding|unter|über|vor|nach|mehr als|weniger als|mindestens|höchstens|"
    r"moins de|plus de|avant|après|menos de|más de|antes de|después de|до|после|более|менее)"
    r"|[<>≤≥≠]=?|超过|超過|不到|未满|未満|至少|最多|不足)\s?$"
)
"""Matches words before a number or date that make it a bound, such as "more than", or that deny it,
such as "not".
"""
_BOUND_AFTER = re.compile(
    r"\s?(?:\+|or (?:more|less|fewer|later|earlier)\b|以上|以下|以内|以前|以后|以後)"
)
"""Matches words after a number or date that make it a bound, such as "or more"."""
RATIO = re.compile(r"(?<![\d/.,])\d{1,2}/\d{1,3}(?![\d/])")
"""Matches a fraction such as 3/4, whose parts must not be read as numbers."""
_MAX_DIGITS = 60
_MAX_PARTS = 24
_EXACT = Context(prec=200)


def number_text(text: str) -> str:
    """Return `text` folded, with every minus written as `-`, and with letters that mean a power of
    ten written as words ("5M" as "5mn").
    """
    text = folded(_LETTER.sub(r"\g<0>n", text))
    return _SIGN.sub(r"\1-", text)


def is_bound(text: str, written: str) -> bool:
    """Return whether the folded text `text` uses the number or date `written` as a bound, as in
    "more than 5", or denies it, as in "not 5".
    """
    before, _, after = text.partition(written)
    return _BOUND.search(before) is not None or _BOUND_AFTER.match(after) is not None


def signs_of(value: str) -> frozenset[str]:
    """Return the signs of percentages and currencies in `value`, such as "%". Words such as
    "percent" do not count.
    """
    return frozenset(_SIGNS) & {*folded(value)}


def signs_in(text: str) -> frozenset[str]:
    """Return the signs of percentages and currencies that `text` contains, as signs or in words."""
    whole = folded(text)
    return frozenset(sign for sign, forms in _FORMS.items() if forms.search(whole))


def numbers_in(text: str, unit: str) -> Iterator[tuple[str, str]]:
    """Yield each number in the folded text `text` as a pair: the number as written, and in
    canonical form. `unit`: the column's unit. If the unit contains a power of ten, such as
    "million", the canonical form is divided by that power.
    """
    for written in _NUMBER.finditer(text):
        if number := _exact(written[0], unit):
            yield written[0], number


def _exact(written: str, unit: str) -> str | None:
    """Return the number `written` in canonical form, divided by the power of ten in `unit`, if any.
    Return None if `written` cannot be read.

    A word for a power of ten multiplies the number before it, together with all smaller parts
    before that number: 三百五十万 is (3 * 100 + 5 * 10) * 10,000.
    """
    parts = _PART.findall(written)
    if len(parts) > _MAX_PARTS:
        return None
    sums = list[Decimal]()
    pending: Decimal | None = None
    with localcontext(_EXACT):
        for part in parts:
            if power := _POWERS.get(part):
                while sums and (pending is None or sums[-1] < 10**power):
                    pending = sums.pop() + (pending or 0)
                sums.append((Decimal(1) if pending is None else pending) * 10**power)
                pending = None
            elif part in _DIGITS:
                pending = (pending or 0) * 10 + Decimal(_DIGITS[part])
            elif (pending := _decimal(part)) is None:
                return None
        total = sum(sums, pending or Decimal(0))
        if sums:
            total = total.scaleb(-sum(_POWERS[power] for power in re.findall(_POWER, folded(unit))))
    shown = format(total, "f")
    shown = shown.rstrip("0").rstrip(".") if "." in shown else shown
    if len(shown) > _MAX_DIGITS:
        return None
    return f"-{shown}" if written[0] == "-" and shown != "0" else shown


def _decimal(written: str) -> Decimal | None:
    digits, _, scale = re.sub("[ ']", "", written).rstrip(".,").partition("e")
    grouped = _GROUPED.fullmatch(digits)
    several = max(map(digits.count, ".,")) > 1 and not {".", ","} <= {*digits}
    if len(digits) > _MAX_DIGITS or (several and not grouped):
        return None
    at = len(digits) if grouped else max(digits.rfind("."), digits.rfind(",")) % (len(digits) + 1)
    integer = re.sub("[.,]", "", digits[:at])
    part = digits[at + 1 :]
    return Decimal(f"{integer}.{part}").scaleb(int(scale or 0), _EXACT)


def only_number(text: str, column: Column) -> str | None:
    """Return the canonical form of the only number in the folded text `text`.

    Return None if there is no number or more than one, or if the text is a range, a fraction or a
    date. Also return None if the word after the number is not a known unit, because it may be a
    power of ten in another language.
    """
    if negative := _NEGATIVE.fullmatch(text):
        text = "{}{}-{}".format(*negative.groups())
    if column.unit:
        text = re.sub(rf"(?<![a-z]){re.escape(normal_text(column.unit))}(?![a-z])", " ", text)
    bare = _IN_PARENTHESES.sub(" ", text)
    number = only(numbers_in(bare, column.unit), bare)
    rest = _NUMBER.sub(" ", text)
    if (
        number is None
        or _LEFT_POWER.search(rest)
        or _POWERS.keys() & {*_WORD.findall(rest)}
        or bare.endswith("-")
    ):
        return None
    written = _NUMBER.search(bare)
    after = written and _AFTER.match(bare, written.end())
    if not after:
        return number
    word = after[1].rstrip(".")
    if word[0] >= "\u2e80" and word not in _UNITS:
        word = word[0]
    known = (
        word in _UNITS
        or word in folded(f"{column.name} {column.about}").split()
        or word in column.name
    )
    return number if known and after[0] not in ("m", "b", "t") else None


def units_in(text: str) -> frozenset[str]:
    """Return the known units in a text with a number."""
    return _UNITS.intersection(_WORD.findall(_NUMBER.sub(" ", number_text(text))))


_TIME = re.compile(
    r"\bt?\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?(?:\s?[ap]\.?m\b|z\b)?|\b\d{1,2}\s?[ap]\.?m\b"
    r"|\d{1,2}[时時点點시](?:\s?\d{1,2}[分분](?:\s?\d{1,2}(?:\.\d{1,6})?[秒초])?)?"
)
_OTHER_ERA = re.compile(
    r"\bb\.?c\.?(?:e\b|\b)|[公紀纪]元前|기원전|\bv\. ?chr|\bav\. ?j|до н\.? ?э"
    r"|明治|大正|昭和|平成|令和|民[国國]|พ\.?ศ"
    r"|\bb\.e\b|\ba\.?h\b|quarter|[季四]半?[期度]|(?<![a-z])[qh][1-4](?!\d)|(?<!\d)[1-4]q"
)
"""Matches years in other calendars or eras (such as BC), and parts of years (such as Q1)."""
_DIGIT = re.compile(r"(?<![a-z\d])\d")
"""Matches a digit that is not part of a unit such as km2."""


def only(matches: Iterable[tuple[str, str]], text: str) -> str | None:
    """Return the canonical form of the only number or date in `text`. Return None if there is none
    or more than one, if it is a bound, or if the text contains further digits.

    `matches`: the numbers or dates in `text` as pairs: as written, and in canonical form.
    """
    pairs = list(matches)
    if len(pairs) != 1 or _OTHER_ERA.search(text) or is_bound(text, pairs[0][0]):
        return None
    rest = _TIME.sub(" ", text.replace(pairs[0][0], " ", 1))
    return None if _DIGIT.search(rest) else pairs[0][1]
