"""Reading: a story in the prompt and a question that the story answers.

In: a random generator, the split. Out: documents of the family `reading`.
Does not know: how a plot runs.
"""

from random import Random

from .document import Document, Talk, Turn, render
from .effort import draw_effort, draw_system
from .heldout import Split
from .plots import tell
from .stories import evidence
from .town import draw_cast, pick

_FRAMES = (
    "{story}\n\n{question}", "{story}\n\n{question}", "{story} {question}",
    "Read this story: {story}\n\n{question}", "Here is a story.\n\n{story}\n\nQuestion: {question}",
    "{question}\n\n{story}", "Story: {story}\nQuestion: {question}",
)


def write(rng: Random, split: Split) -> Document:
    """One story with one to three questions in a row."""
    tale = tell(rng, draw_cast(rng, split))
    effort = draw_effort(rng)
    more = split == "train" and effort is None and rng.random() < 0.5
    facts = rng.sample(tale.facts, min(len(tale.facts), 3 if more else 1))
    first = pick(rng, _FRAMES).format(story=tale.text, question=facts[0].question)
    turns = [Turn(fact.question if number else first, fact.answer,
                  evidence(fact.evidence, fact.answer, effort))
             for number, fact in enumerate(facts)]
    return render("reading", Talk(turns, effort, draw_system(rng)))
