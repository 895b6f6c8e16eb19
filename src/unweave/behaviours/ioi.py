"""Indirect object identification: "… John gave a book to" is followed by the other name.

Wang et al., Interpretability in the Wild: a Circuit for Indirect Object Identification in GPT-2
small (ICLR 2023). The templates and word lists are our own.
"""

from random import Random

from unweave.behaviours.prompt import Prompt, fill
from unweave.behaviours.published import GPT2_SMALL, published_roles
from unweave.behaviours.task import KnownCircuit, heads, task
from unweave.behaviours.words import Words
from unweave.metrics import LOGIT_DIFFERENCE

# Giver and receiver come first in either order; the third name is the giver's again.
TEMPLATES = (
    "Last week {first} and {second} drove to the {place}, and {giver:S2} gave a {object} to",
    "On Sunday {first} and {second} visited the {place}. Then {giver:S2} offered a {object} to",
    "At the {place} {first} and {second} sat down together, and {giver:S2} gave a {object} to",
    "Friends of {first} and {second} own the {place}, where {giver:S2} lent a {object} to",
    "When {first} and {second} were lost near the {place}, {giver:S2} gave a {object} to",
    "Before {first} and {second} went into the {place}, {giver:S2} threw a {object} to",
    "Every time {first} and {second} come to the {place}, {giver:S2} hands a {object} to",
    "It rained when {first} and {second} reached the {place}, so {giver:S2} gave a {object} to",
    "Because {first} and {second} were early at the {place}, {giver:S2} gave a {object} to",
    "When {first} and {second} came back from the {place}, {giver:S2} handed a {object} to",
    "The {place} was empty when {first} and {second} arrived, so {giver:S2} gave a {object} to",
    "Soon {first} and {second} got tired of the {place}, and {giver:S2} handed a {object} to",
)
NEW = ("3", "6", "10")  # other openings and verbs than the nine that are searched on
NAMES = """
    Aaron Adam Alan Albert Alex Andrew Anthony Arthur Ben Brian Bruce Carl Charles Chris Daniel
    David Dennis Donald Edward Eric Fred Gary George Greg Harry Henry Ian Jack Jacob James Jason
    Jeff Jim Joe John Jonathan Joseph Josh Justin Keith Kevin Kyle Larry Leo Louis Luke Martin
    Matt Matthew Max Michael Mike Nathan Nick Oliver Oscar Patrick Paul Peter Philip Richard
    Robert Roger Ryan Sam Scott Sean Simon Stephen Steve Steven Thomas Tim Tom Tony Victor Walter
    Alice Amanda Amy Andrea Angela Anna Anne Barbara Carol Caroline Christine Claire Diana
    Elizabeth Ellen Emily Emma Eva Helen Jane Jennifer Jessica Julia Julie Karen Kate Katie Kelly
    Laura Linda Lisa Lucy Margaret Maria Marie Martha Mary Melissa Michelle Nancy Nicole Rachel
    Rebecca Ruth Sandra Sara Sarah Sharon Sophie Stephanie Susan Victoria
"""
PLACES = """
    store park school office station library market museum garden hotel hospital restaurant
    theater beach airport church farm bank lake factory harbor river bridge castle
"""
OBJECTS = """
    book ball key letter card ring drink ticket map pen watch coin flower gift bottle cup box bag
    phone camera knife cake jacket picture hat shirt
"""
GPT2 = KnownCircuit(
    heads(
        "2.2 4.11 0.1 3.0 0.10 5.5 6.9 5.8 5.9 7.3 7.9 8.6 8.10 10.7 11.10 9.9 9.6 10.0 9.0 9.7"
        " 10.1 10.2 10.6 10.10 11.2 11.9"
    ),
    "Wang et al. 2023, figure 2",
    aliases=("gpt2-small",),
    roles=published_roles(
        """
        previous token: 2.2@S1+1 4.11@S1+1
        duplicate token: 0.1@S2 0.10@S2 3.0@S2
        induction: 5.5@S2 5.8@S2 5.9@S2 6.9@S2
        S-inhibition: 7.3@end 7.9@end 8.6@end 8.10@end
        name mover: 9.6@end 9.9@end 10.0@end
        negative name mover: 10.7@end 11.10@end
        backup name mover: 9.0@end 9.7@end 10.1@end 10.2@end 10.6@end 10.10@end 11.2@end 11.9@end
        """
    ),
    shape=GPT2_SMALL,
)


@task(
    "ioi",
    metric=LOGIT_DIFFERENCE,
    relative=("S1+1",),
    known={"gpt2": GPT2},
    n_discover=24,
    new_templates=NEW,
)
def ioi(words: Words, n: int, rng: Random) -> list[Prompt]:
    """One of two people gives something to the other.

    Clean prompts come in the orders ABBA and BABA; the corrupted ones have three different names
    (ABC), so that nobody is mentioned twice.
    """
    names = words.single(NAMES, at_least=5)
    places, objects = words.single(PLACES), words.single(OBJECTS)
    prompts = []
    for i in range(n):
        template = i % len(TEMPLATES)
        receiver, giver, *others = rng.sample(names, 5)
        nouns = {"place": rng.choice(places), "object": rng.choice(objects)}
        first, second = rng.choice([("IO", "S1"), ("S1", "IO")])
        people = {"IO": receiver, "S1": giver}
        clean, spans = fill(
            TEMPLATES[template], first=people[first], second=people[second], giver=giver, **nouns
        )
        abc = dict(zip(("first", "second", "giver"), others, strict=True))
        prompts.append(
            Prompt(
                clean,
                fill(TEMPLATES[template], **abc, **nouns)[0],
                answers=(f" {receiver}",),
                distractors=(f" {giver}",),
                template=str(template),
                spans={first: spans["first"], second: spans["second"], "S2": spans["S2"]},
            )
        )
    return prompts
