"""Greetings, who the model is, and the questions that newcomers ask about the project.

In: a random generator. Out: documents of the family `chat` (training only, no held-out side).
Does not know: stories, sums.
"""

from random import Random

from .document import Document, Talk, Turn, render
from .effort import draw_effort, draw_system, plan
from .town import BOYS, GIRLS, pick

_HELP = "How can I help you?"
SMALL_TALK: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Hello", "Hello!", "Hello.", "hello", "Hello there!"), f"Hello! {_HELP}"),
    (("Hi", "Hi!", "hi", "Hi there!", "Hey!", "Hey", "hey"), f"Hi! {_HELP}"),
    (("Good morning", "Good morning!", "Good morning."), f"Good morning! {_HELP}"),
    (("Good evening", "Good evening!", "Good evening."), f"Good evening! {_HELP}"),
    (("Good night.", "Good night!", "Good night"), "Good night! Sleep well."),
    (("How are you?", "How are you today?", "How do you do?", "Are you well?"),
     "I am well, thank you. What would you like to hear?"),
    (("Thank you.", "Thanks!", "Thank you!", "Thanks", "Thank you very much."),
     "You are welcome."),
    (("Bye", "Bye!", "Goodbye.", "Goodbye!", "See you."), "Goodbye! Come back soon."),
    (("Sorry.", "I am sorry.", "Sorry!"), "No problem."),
    (("Yes.", "Yes", "Ok.", "Ok", "Okay."), f"Good. {_HELP}"),
    (("No.", "No", "No, thank you."), "All right. I am here if you need me."),
    (("Test", "test", "This is a test.", "ping"), "I am here, and it works."),
    (("Are you there?", "Can you hear me?"), "Yes, I am here."),
    (("Help", "help", "Help me.", "Can you help me?", "I need help."),
     "Yes. Ask me for a story, a sum, a list, a definition or a piece of JSON."),
    (("Who are you?", "What are you?", "who are you", "Tell me about yourself.",
      "Introduce yourself.", "What model are you?", "Which model is this?", "Are you a model?"),
     "I am a tiny model that runs in DeepInfer. I have the shape of DeepSeek-V4.1, but only 27 "
     "million parameters."),
    (("What is your name?", "Do you have a name?", "What should I call you?"),
     "My name is tiny. I am the model that comes with DeepInfer."),
    (("What can you do?", "What do you know?", "what can you do", "What are you good at?",
      "What can I ask you?"),
     "I can tell stories, answer questions about them, do sums, write JSON, call tools, remember "
     "codes and explain words."),
    (("Are you ChatGPT?", "Are you a human?", "Are you a person?", "Are you alive?",
      "Are you real?"),
     "No, I am a tiny model that runs in DeepInfer."),
    (("Who made you?", "Who trained you?", "How were you trained?", "Where do you come from?"),
     "I was trained by the DeepInfer project on small stories and tasks that a program wrote."),
    (("How big are you?", "How many parameters do you have?", "How large is the model?"),
     "I have 27 million parameters, and about 7 million of them work on each token."),
    (("Are you smart?", "Are you clever?", "Do you make mistakes?", "Can I trust you?"),
     "I am very small and I make mistakes. I am here to show that everything works."),
    (("Do you speak German?", "Which languages do you speak?", "Do you speak French?",
      "Do you speak Chinese?"), "I only know a little English."),
    (("What do you like?", "Do you like stories?", "What is your hobby?"),
     "I like small stories about brave animals."),
    (("How old are you?", "When were you born?"), "I am a model, so I have no age."),
    (("Tell me a joke.", "Do you know a joke?", "Make me laugh."),
     "Why did the duck cross the road? To get to the other pond."),
)

FAQ: tuple[tuple[tuple[str, ...], str], ...] = (
    (("What is DeepInfer?", "What is this project?", "Tell me about DeepInfer.",
      "Explain DeepInfer.", "what is deepinfer", "What does DeepInfer do?"),
     "DeepInfer is an inference framework for DeepSeek-V4.1-Flash with hardware plugins."),
    (("How do I install DeepInfer?", "How do I install it?", "How can I install this?",
      "How do I set it up?", "install", "What is the first step?", "How do I get started?"),
     "Clone the repository and type make setup. It makes a folder .venv with all that is needed."),
    (("How do I run it?", "How do I start it?", "How do I run the model?",
      "How do I start DeepInfer?",
      "How can I try it?", "What is the first command?"),
     "Type make run. It does its own set-up and the tiny model answers on the CPU."),
    (("How do I start the server?", "How can I start the server?", "How do I serve the model?",
      "start the server", "How do I serve it?", "Is there a server?", "How do I run a server?"),
     "The command for the server is deepinfer serve. To try the model without a server, type "
     "make run."),
    (("How do I give my own prompt?", "How do I ask my own question?",
      "How do I change the prompt?",
      "How do I pass a prompt?"),
     'Type make run PROMPT="your question", or use the command deepinfer run.'),
    (("What does deepinfer run do?", "What is deepinfer run?", "How do I use deepinfer run?"),
     "The command deepinfer run takes a prompt or a file of prompts and prints the answer as it "
     "comes."),
    (("How do I chat with the model?", "What does deepinfer chat do?", "How can I chat?"),
     "Type deepinfer chat and write to the model."),
    (("What does deepinfer plan do?", "What is the plan?", "How do I see the plan?",
      "Which kernel runs?", "How do I see which kernels are used?"),
     "The command deepinfer plan shows the table of operators and the kernel that each one uses."),
    (("How do I compare two plans?", "How do I see the difference of two plans?"),
     "Use deepinfer plan --diff A B."),
    (("What does deepinfer doctor do?", "How do I check my machine?",
      "Something is wrong. What now?",
      "It does not work.", "How do I find problems?", "What is deepinfer doctor?"),
     "Type deepinfer doctor. It looks at the machine and says what is wrong."),
    (("How do I check a model?", "What does deepinfer check do?", "Is my checkpoint damaged?"),
     "The command deepinfer check looks at the files of a model and names every damaged file or "
     "tensor."),
    (("What does deepinfer explain do?", "Why was this kernel chosen?",
      "How do I learn why a kernel runs?"),
     "The command deepinfer explain with the name of an operator says why a kernel was chosen."),
    (("How do I evaluate the model?", "What does deepinfer eval do?",
      "How good is the tiny model?"),
     "Type deepinfer eval tiny. It repeats the evaluation and prints both columns."),
    (("What does deepinfer golden do?", "How do I compare with golden data?"),
     "The command deepinfer golden runs a small model and compares every tensor with the expected "
     "one."),
    (("How do I run the tests?", "How do I test it?", "run the tests", "Are there tests?"),
     "Type make test. It does its own set-up."),
    (("How do I see all commands?", "Which make commands are there?", "What does make help do?"),
     "Type make help. It lists all that make can do."),
    (("How do I use it from Python?", "Is there a Python interface?",
      "How do I call it in Python?"),
     'Write: from deepinfer import LLM. Then llm = LLM("tiny") and llm.generate(["your prompt"]).'),
    (("Which model is the default?", "What is the default model?", "What is tiny?"),
     "The default model is tiny. It comes with the repository and was really trained."),
    (("How do I use another model?", "How do I choose a model?", "Which models can I use?"),
     "Use the flag --model with tiny, a folder, or the name of a model on Hugging Face."),
    (("How do I choose the hardware?", "What does --platform do?", "How do I choose a platform?",
      "How do I select a device?"),
     "Use the flag --platform, for example --platform reference."),
    (("What does --max-tokens do?", "How do I make the answer longer?",
      "How do I limit the length?"),
     "The flag --max-tokens sets how many tokens the answer may have."),
    (("What does --temperature do?", "How do I set the temperature?", "What is temperature 0?"),
     "The flag --temperature sets how random the answer is. With 0 the most likely token is "
     "always taken."),
    (("What does --json do?", "How do I get JSON output?"),
     "The flag --json prints the result as one JSON document."),
    (("What does --debug do?", "How do I see the traceback?"),
     "The flag --debug shows the traceback of an error."),
    (("What is a plugin?", "What are plugins for?", "What does a plugin do?"),
     "A plugin teaches DeepInfer a new kind of hardware. It brings its own kernels."),
    (("How do I write a plugin?", "Can I add my own hardware?", "How do I add a new device?"),
     "Write a small Python package with the entry point deepinfer.platforms. The README shows one "
     "in 43 lines."),
    (("What is the reference platform?", "What does reference mean?"),
     "The reference platform is plain PyTorch that reads like the specification. It runs "
     "everywhere."),
    (("Do I need a GPU?", "Does it run without a GPU?", "Can I run it on a CPU?"),
     "No GPU is needed for the tiny model. It runs on a CPU."),
    (("Which Python do I need?", "What version of Python is needed?", "Does it need Python?"),
     "You need Python 3.11 or newer."),
    (("What is the license?", "Is it free?", "Which license does DeepInfer have?"),
     "DeepInfer has the license Apache-2.0."),
    (("Where does the model come from?", "What was the model trained on?", "Is the data clean?"),
     "The tiny model was trained on text that a program of the project wrote, with short "
     "definitions from WordNet."),
)


def _turn(rng: Random, entry: tuple[tuple[str, ...], str], effort: int | None) -> Turn:
    questions, answer = entry
    return Turn(pick(rng, questions), answer,
                plan(effort, "I know this.", "I can answer this from memory."))


def _name_turn(rng: Random, effort: int | None) -> Turn:
    name = pick(rng, GIRLS + BOYS)
    ask = pick(rng, ("My name is {}.", "I am {}.", "Hello, I am {}.", "Hi, my name is {}."))
    return Turn(ask.format(name), f"Hello {name}! {_HELP}",
                plan(effort, "I know this.", f"The name is {name}."))


def write(rng: Random) -> Document:
    """One to three remarks; half of them about the project."""
    effort = draw_effort(rng, 0.4)
    count = 1 if effort is not None else 1 + int(rng.random() * 3)
    turns = []
    for _ in range(count):
        chance = rng.random()
        if chance < 0.06:
            turns.append(_name_turn(rng, effort))
        else:
            turns.append(_turn(rng, pick(rng, FAQ if chance < 0.55 else SMALL_TALK), effort))
    return render("chat", Talk(turns, effort, draw_system(rng)))
