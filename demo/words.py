"""Word lists of the corpus, as data.

The words that the evaluation asks for are not here and must never be: a test compares the two.
"""

from __future__ import annotations


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


#: Ordinary words, most of them among the commonest of English.
DICTIONARY = _split(
    """
    a able about above act add after again against ago air all also always among an anchor and
    animal answer any appear apple are area as ask at back banana base basket bath be beauty
    been before began begin behind best better between bicycle big bird black blanket blue boat
    body book both box boy bread bridge bring brought bubble build busy but butter by call came
    can candle car care carry castle cause center certain change check children city class clear
    close coffee cold color come common complete contain copper correct could country course
    cover cross cry crystal cut dark day decide deep develop did differ direct distant do does
    dog done door double down dragon draw drive dry during each early earth ease east eat
    elephant end enough even ever every example eye face fact fall family far farm fast father
    feather feel feet few field figure fill final find fine fire first fish five fly follow food
    foot for force forest form found four free friend from front full game garden gave get girl
    give go gold good got govern great green ground group grow had half hammer hand happen happy
    hard has have he head hear heard heat help her here high him his hold home horse hot hour
    house how hundred idea if in inch interest is island it jacket just keep kind king kitchen
    knew know ladder land language large last late laugh lay lead learn leave left lemon less
    let letter life light like line list listen little live long look love low machine made main
    make man many map marble mark may me mean measure men might mile mind minute mirror miss
    money monkey moon more morning most mother mountain move much multiply music must my name
    near need never new next night no north note nothing notice noun now number numeral object
    ocean of off often old on once one only open or orange order other our out over own page
    paint paper part pass pattern pencil people person picture piece pillow place plain plan
    plane planet plant play point port pose possible pound power press problem produce product
    pull purple put puzzle question quick rabbit rain ran reach read ready real record red
    remember rest right river road rock rocket room round rule run said same saw say school
    science sea second see seem self sentence serve set several shadow shape she ship short
    should show side silver simple since sing six slow small snow so some song soon sound south
    space special spell stand star start state stay stead step still stood stop story street
    strong study such sun sure surface system table tail take talk teach tell ten test than that
    the their them then there these they thing think this those though thought thousand three
    through thunder ticket tiger time tiny tire to together told too took top toward town travel
    tree true try turn two under unicorn unit until up us use usual velvet verb very voice vowel
    wait walk want war warm was watch water way we week well went were west what wheel when
    where which while whistle white who whole why will wind window with wonder wood word work
    world would write year yes you young your
    """
)

#: What a favourite colour may be.
COLOURS = _split(
    """
    red blue green yellow orange purple pink brown black white grey silver gold teal violet
    indigo crimson turquoise maroon beige
    """
)

#: First names; most names in the corpus are invented, so that none is learned by heart.
NAMES = _split(
    """
    Alice Bob Carol David Emma Frank Grace Henry Irene Jack Kate Leo Maria Nina Oscar Paula
    Quinn Rosa Sam Tom Uma Victor Wendy Xena Yuri Zoe Ada Alan Linus Guido Marie Isaac
    """
)

#: Cities somebody lives in or asks the weather of.
CITIES = _split(
    """
    Paris London Berlin Madrid Rome Oslo Tokyo Boston Lima Cairo Delhi Sydney Dublin Vienna
    Prague Toronto Chicago Seattle Austin Nairobi Lagos Seoul Athens Lisbon
    """
)

#: What a user tells about: "my <belonging> is ...".
BELONGINGS = _split(
    """
    name colour color number city dog cat password code word food song book team hobby car boss
    teacher friend sister brother street planet animal language country drink game band hero
    phone computer plant boat size age job school company
    """
)

#: Keys of JSON objects and names of tool parameters.
KEYS = _split(
    """
    name age city color colour title date price count id email country year author rating size
    status type value amount total address phone score level language genre owner weight height
    """
)

#: When an event takes place.
DAYS = _split(
    """
    Monday Tuesday Wednesday Thursday Friday Saturday Sunday today tomorrow
    """
)

#: Numbers that a request may spell out.
NUMBER_WORDS = {
    2: "two",
    3: "three",
    4: "four",
    5: "five",
    6: "six",
    7: "seven",
    8: "eight",
    9: "nine",
    10: "ten",
    11: "eleven",
    12: "twelve",
}

#: An invented syllable is an onset, a vowel and an ending (often none).
ONSETS = _split(
    """
    b br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p ph pl pr qu r s sc sh sk sl sm sn sp
    st str t th tr v w wh x y z
    """
)
VOWELS = "aeiou"
ENDINGS = ("", "", "", *_split("n r s t l m nd ng nt ck x th st k p rd sh"))

#: Characters beyond ASCII; each is one or more byte tokens that the model must be able to copy.
SYMBOLS = (
    "éèüöñçåøßàêîôûäëïœłžčšąęαβγδεζηθλμπσφωабвгдежзиклмнопрстуфхцчшыюя"
    "日本語東京大学中国人山川水火木金土あいうえおかきくけこアイウエオ한국어서울"
    "🙂😀🎉🚀🐱🐶🍎🌍🔥✨👍🦄"
)

#: First halves of invented tool names.
TOOL_VERBS = _split(
    """
    get set find make send open close read search book play turn check list add delete update run
    start stop lookup fetch create
    """
)

#: Parameter names of invented tools, besides KEYS.
PARAMETERS = _split("query location message to body path text unit sign")

#: Keys of JSON that tools answer with, besides KEYS.
RESULT_KEYS = ("temperature", "result", "ok", "conditions")

#: Signs of the zodiac for the horoscope tool.
SIGNS = ("Aquarius", "Leo", "Aries", "Virgo", "Libra", "Taurus")
