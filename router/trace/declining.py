"""Answers that only say that nothing was found, in the languages that models often write."""

import re

LONGEST = 100
"""Max characters of an answer that only says that nothing was found. A longer answer says more than
that.
"""
_AROUND = " .!。！*_\"'“”「」()"
_SOURCES = r"(?:reports?|documents?|results?|sources?|evidence|passages?|context|texts?)"
_WHICH = r"(?:(?:the|your|any|of|these|those|our|provided|given|retrieved|available|search) ){0,4}"
_PLACE = rf"(?: (?:in|by|from|within|among) {_WHICH}{_SOURCES})"
_ASKED = (
    r"(?:(?:the|an|any|this|that|enough|relevant|requested|such) ){0,3}"
    r"(?:answer|information|details?|question)"
    r"(?: (?:to|for|about|on|to answer) (?:the|this|that|your) question)?"
)
_THING = rf"(?:{_ASKED}|this|that|it)"
_IS_NOT = r"(?:(?:is|was|were|could|can|has) ?)?not (?:been |be )?"
_FOUND = r"(?:found|stated|mentioned|specified)"
# Without a place, “No evidence was found” and “It was not found” may answer the question.
_ENGLISH = (
    rf"not {_FOUND}|{_ASKED} {_IS_NOT}{_FOUND}|(?:{_THING} )?{_IS_NOT}(?:{_FOUND}|"
    rf"given|available|provided|known|answered|determined|contained|included){_PLACE}"
    rf"|(?:none of {_WHICH}{_SOURCES}|{_WHICH}{_SOURCES} (?:do|does|did) not) (?:hold|contain|"
    rf"mention|state|say|provide|include|give|have|answer|specify)s?(?: {_THING})?"
    r"|no (?:relevant |such |matching )?(?:(?:answer|information)(?: (?:was|were|is|are))? "
    r"(?:found|available)|(?:answer|information|evidence|results?|documents?)"
    rf"(?: (?:was|were|is|are))?(?: (?:found|available|given))?{_PLACE})"
    rf"|(?:i|we) (?:could not|can ?not|did not|was unable to|were unable to|am unable to) "
    rf"(?:find|determine)(?: {_THING})?{_PLACE}?"
)
_GERMAN_PLACE = r"in (?:den|ihren|diesen) (?:berichten|dokumenten|unterlagen|quellen)"
_GERMAN_NOT = r"nicht (?:gefunden|angegeben|erwähnt|genannt)"
_GERMAN_LACK = (
    rf"(?:{_GERMAN_NOT}|nicht enthalten|keine (?:antwort|informationen|angaben?)"
    r"(?: (?:gefunden|vorhanden|verfügbar|enthalten))?)"
)
_FRENCH_PLACE = r" dans (?:les|vos|ces) (?:rapports|documents|sources)"
_SPANISH_PLACE = r" en (?:los|sus|tus|estos) (?:informes|documentos|fuentes)"
_CHINESE_PLACE = r"在?(?:您的)?(?:报告|文档|文件|资料|報告|文件|資料)(?:中|里|裡)?(?:均|都|并)?"
_CHINESE_LACK = (
    r"(?:(?:未|没有|没|沒有|无法|無法)(?:能)?(?:找到|提及|提到|说明|說明|查到|确定|確定)|找不到)"
)
_CHINESE_THING = (
    r"(?:该|此|相关|相關|任何|这个|這個|问题的|問題的){0,3}(?:答案|信息|内容|資訊|資料)"
)
_JAPANESE_PLACE = r"(?:報告書?|文書|資料|レポート|ドキュメント)(?:の中)?(?:に|では|には|から)?は?"
_JAPANESE_LACK = r"(?:見つかりません(?:でした)?|見つからない|見つからなかった)"
_OTHERS = (
    # German
    rf"{_GERMAN_NOT}|keine (?:antwort|informationen|angaben?) (?:gefunden|verfügbar)"
    rf"|{_GERMAN_PLACE} {_GERMAN_LACK}|{_GERMAN_LACK} {_GERMAN_PLACE}"
    rf"|nicht {_GERMAN_PLACE} (?:gefunden|angegeben|erwähnt|genannt|enthalten)",
    r"die (?:berichte|dokumente|quellen) enthalten (?:die antwort nicht|"
    r"keine (?:antwort|angaben?))",
    # French
    r"(?:(?:la )?réponse )?(?:non|pas|n'a pas été) (?:trouvée?|précisée?|mentionnée?|indiquée?)"
    rf"(?:{_FRENCH_PLACE})?|aucune (?:information|réponse) (?:trouvée|disponible)"
    rf"|(?:introuvable|aucune (?:information|réponse)(?: trouvée| disponible)?){_FRENCH_PLACE}"
    r"|les (?:rapports|documents) ne contiennent pas (?:la|cette) (?:réponse|information)",
    # Spanish
    r"(?:(?:la )?respuesta )?no (?:encontrad[oa]|mencionad[oa]|especificad[oa]"
    rf"|se (?:menciona|indica|especifica))(?:{_SPANISH_PLACE})?"
    rf"|(?:la )?respuesta no se (?:encontró|encuentra|ha encontrado)(?:{_SPANISH_PLACE})?"
    r"|(?:no se (?:encontró|encuentra|ha encontrado)"
    rf"|(?:no hay|sin|ninguna) (?:información|respuesta)){_SPANISH_PLACE}"
    r"|los (?:informes|documentos) no contienen (?:la|esta) (?:respuesta|información)",
    # Chinese
    r"未(?:能)?找到|(?:未|没有|没|沒有)(?:提及|提到|说明|說明)"
    rf"|{_CHINESE_PLACE}{_CHINESE_LACK}(?:{_CHINESE_THING})?|{_CHINESE_LACK}{_CHINESE_THING}",
    # Japanese
    rf"{_JAPANESE_PLACE}(?:{_JAPANESE_LACK}|該当なし)"
    rf"|(?:{_JAPANESE_PLACE})?(?:(?:答え|回答|情報|記載)(?:は|が){_JAPANESE_LACK}"
    r"|(?:情報|記載)(?:は|が)ありません(?:でした)?|記載なし)",
)
_DECLINING = re.compile("|".join((_ENGLISH, *_OTHERS)))
_BEGINNINGS = (
    "not,no ,none,i ,we ,it ,its,this,that,these,those,your,our,any,the ,an ,answer,information,"
    "enough,relevant,requested,such,details,question,is ,was ,were,could,can,has ,have,report,"
    "document,result,source,evidence,passage,context,text,provided,given,retrieved,available,"
    "search,"
    "nicht,keine,in den,in ihren,in diesen,die ,pas ,la ,réponse,introuvable,aucune,les ,sin ,"
    "ninguna,respuesta,los ,non ,n'a pas,n’a pas,of ,"
    "在,您,报,報,文,资,資,均,都,并,未,没,沒,无,無,找,レ,ド,答,回,情,記,見,該"
).split(",")


def declines(answer: str) -> bool:
    """Return True if an answer is short and only says that nothing was found."""
    words = answer.strip(_AROUND).casefold().replace("’", "'").replace("n't ", " not ")
    return len(answer) <= LONGEST and _DECLINING.fullmatch(words) is not None


def may_decline(beginning: str) -> bool:
    """Return True if an answer that begins with `beginning` may only say that nothing was found,
    once it is complete.
    """
    words = beginning.lstrip(_AROUND).casefold()
    return len(words) <= LONGEST and any(
        words.startswith(first) or first.startswith(words) for first in _BEGINNINGS
    )
