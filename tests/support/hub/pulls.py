"""Pull requests (the Hub's discussions that bring commits): listing, opening, details, status, merging."""

from .repository import Refused, event, iso
from .routes import find, need_login, need_write, route
from .wire import json_reply

PAGE = 10


def summary(repository, pull):
    return {"num": pull.num, "title": pull.title, "status": pull.status, "createdAt": iso(pull.time),
            "author": {"name": pull.author, "type": "user"}, "isPullRequest": True, "numComments": 1, "pinned": False,
            "repo": {"name": repository.id, "type": "model"}}


def pull_by_number(repository, number):
    if not number.isdigit() or int(number) not in repository.pulls:
        raise Refused(404, "Discussion not found")
    return repository.pulls[int(number)]


@route("GET", "api/models/{repo}/discussions")
def discussions(hub, request, repo):
    repository = find(hub, request, repo)
    kind, status, author = (request.argument(name) or "all" for name in ("type", "status", "author"))
    accepted = {"all": ("draft", "open", "closed", "merged"), "open": ("draft", "open"), "closed": ("closed", "merged")}
    if status not in accepted:
        raise Refused(400, "Invalid status")
    found = [pull for pull in reversed(list(repository.pulls.values()))
             if kind in ("all", "pull_request") and pull.status in accepted[status] and author in ("all", pull.author)]
    start = int(request.argument("p") or 0) * PAGE
    return json_reply({"discussions": [summary(repository, pull) for pull in found[start:start + PAGE]],
                       "count": len(found), "start": start, "numClosedDiscussions": 0})


@route("POST", "api/models/{repo}/discussions")
def open_discussion(hub, request, repo):
    account = need_login(hub, request)
    repository = find(hub, request, repo)
    asked = request.json()
    if not asked.get("pullRequest"):
        raise Refused(400, "This server has pull requests, but no discussions")
    if len(asked.get("title", "")) < 3:
        raise Refused(400, "The title must have at least 3 characters")
    pull = repository.open_pull(asked["title"], asked.get("description", ""), account.name, status="draft")
    return json_reply({"num": pull.num, "pullRequest": True, "url": "/%s/discussions/%d" % (repository.id, pull.num)})


@route("GET", "api/models/{repo}/discussions/{number}")
def details(hub, request, repo, number):
    repository = find(hub, request, repo)
    pull = pull_by_number(repository, number)
    changes = {"base": "refs/heads/" + pull.branch}
    if pull.merge_commit:
        changes["mergeCommitId"] = pull.merge_commit
    conflicts = repository.conflicts(pull) if pull.status in ("draft", "open") else []
    return json_reply({**summary(repository, pull), "changes": changes, "filesWithConflicts": conflicts,
                       "events": pull.events, "diff": ""})


@route("POST", "api/models/{repo}/discussions/{number}/status")
def change_status(hub, request, repo, number):
    account = need_login(hub, request)
    repository = find(hub, request, repo)
    pull = pull_by_number(repository, number)
    if account.name != pull.author:
        need_write(account, repo)
    wanted = request.json().get("status")
    if wanted not in ("open", "closed"):
        raise Refused(400, "Invalid status")
    if pull.status == "merged":
        raise Refused(400, "This pull request is merged")
    pull.status = wanted
    pull.events.append(event(pull, "status-change", account.name, {"status": wanted}))
    return json_reply({"newStatus": pull.events[-1]})


@route("POST", "api/models/{repo}/discussions/{number}/merge")
def merge(hub, request, repo, number):
    account = need_login(hub, request)
    repository = find(hub, request, repo, write=True)
    repository.merge(pull_by_number(repository, number), account.name)
    return json_reply({"success": True})
