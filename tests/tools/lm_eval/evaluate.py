"""Evaluations of lm-evaluation-harness. Standard input: a JSON list of {"model", "model_args", "task", "batch_size",
"chat"}; the argument: the folder of task files. Standard output: a JSON line for each, with the metrics, and what the model
answered to each question, in the questions' order."""

import json
import sys

import lm_eval
from lm_eval.tasks import TaskManager


def main():
    tasks = TaskManager(include_path=sys.argv[1], include_defaults=False)
    for asked in json.load(sys.stdin):
        result = lm_eval.simple_evaluate(
            model=asked["model"], model_args=asked["model_args"], tasks=[asked["task"]], batch_size=asked["batch_size"],
            apply_chat_template=asked["chat"], task_manager=tasks, bootstrap_iters=0, log_samples=True)
        samples = sorted(result["samples"][asked["task"]], key=lambda sample: sample["doc_id"])
        print("EVALUATED " + json.dumps({"metrics": result["results"][asked["task"]],
                                         "answers": [[answer for answers in sample["resps"] for answer in answers]
                                                     for sample in samples]}), flush=True)


if __name__ == "__main__":
    main()
