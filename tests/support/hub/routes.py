"""Which function answers which path, and who may see and change what.

A pattern's {repo} stands for two parts of the path (ORG/NAME), {rest*} for all that follow. A function is called with
the hub, the request, and the pattern's parts by name; the hub's lock is held.
"""

import time

from .repository import Refused
from .wire import Reply

ROUTES = []
NO_LOGIN = "Invalid username or password."


def route(methods, pattern):
    def register(function):
        for method in methods.split():
            ROUTES.append((method, pattern.split("/"), function))
        return function
    return register


def bind(pattern, parts):
    """{name: value} if the path's parts fit a pattern, otherwise None."""
    bound, at = {}, 0
    for word in pattern:
        if word.endswith("*}"):
            bound[word[1:-2]] = "/".join(parts[at:])
            return bound if at < len(parts) else None
        width = 2 if word.startswith("{repo}") else 1
        if at + width > len(parts):
            return None
        value = "/".join(parts[at:at + width])
        at += width
        if word.startswith("{"):
            name, _, suffix = word[1:].partition("}")
            if not value.endswith(suffix):
                return None
            bound[name] = value[:len(value) - len(suffix)]
        elif word != value:
            return None
    return bound if at == len(parts) else None


def answer(hub, request):
    """The reply of the Hub's host."""
    with hub.lock:
        limits = count_request(hub, request)
        try:
            parts = request.segments
            for method, pattern, function in ROUTES:
                if method == request.method or (request.method == "HEAD" and method == "GET"):
                    bound = bind(pattern, parts)
                    if bound is not None:
                        reply = function(hub, request, **bound)
                        break
            else:
                raise Refused(404, "Sorry, we can't find the page you are looking for.")
        except Refused as error:
            error.headers = {**limits, **error.headers}
            raise
        reply.headers = {**limits, **reply.headers}
        return reply


def count_request(hub, request):
    """The headers that tell of the rate limit; refuses what is beyond it. A window begins with a request."""
    bucket = "api" if request.path.startswith("api/") or "/info/lfs/" in request.path else "resolvers"
    if bucket not in hub.rate_limits:
        return {}
    quota, window_seconds = hub.rate_limits[bucket]
    who = (bucket, request.authorization)
    began, count = hub.rate_windows.get(who, (0.0, 0))
    now = time.monotonic() / hub.second
    if now >= began + window_seconds:
        began, count = now, 0
    hub.rate_windows[who] = (began, count + 1)
    left = max(0.0, began + window_seconds - now)
    headers = {"RateLimit": '"%s";r=%d;t=%d' % (bucket, max(0, quota - count - 1), int(left)),
               "RateLimit-Policy": '"fixed window";"%s";q=%d;w=%d' % (bucket, quota, round(window_seconds))}
    if count + 1 > quota:
        if hub.retry_after:
            headers["Retry-After"] = str(int(left) + 1)
        raise Refused(429, "We had to rate limit you, you hit the quota of %d %s requests per %d seconds period."
                      % (quota, bucket, round(window_seconds)), headers=headers)
    return headers


# Who may do what ----------------------------------------------------------------------------------------------------


def identify(hub, request):
    """The account whose token a request carries, or None for nobody."""
    if request.authorization is None:
        return None
    account = hub.accounts.get(request.authorization.partition("Bearer ")[2])
    if account is None:
        raise Refused(401, "Invalid credentials in Authorization header")
    return account


def need_login(hub, request):
    account = identify(hub, request)
    if account is None:
        raise Refused(401, NO_LOGIN)
    return account


def find(hub, request, repo, write=False):
    """The repository, if the request's account may see it (and, with `write`, change it)."""
    account = identify(hub, request)
    if repo in hub.renames and repo not in hub.repositories:
        target = hub.renames[repo]
        if hub.repositories[target].private and not (account and account.owns(target)):
            missing(hub, account)
        location = request.raw_path.replace("/" + repo, "/" + target, 1)
        raise Refused(307, "Temporary Redirect. Redirecting to " + location, headers={"Location": location})
    found = hub.repositories.get(repo)
    if found is None or (found.private and not (account and account.owns(repo))):
        missing(hub, account)
    if write:
        if account is None:
            raise Refused(401, NO_LOGIN)
        need_write(account, repo)
    return found


def missing(hub, account):
    """The Hub does not tell a repository that does not exist from one that may not be seen."""
    if account is None:
        raise Refused(401, NO_LOGIN, "RepoNotFound" if hub.code_with_401 else None)
    raise Refused(404, "Repository not found", "RepoNotFound")


def need_write(account, repo):
    if account.read_only:
        raise Refused(403, "Forbidden: you must use a write token to upload to a repository.")
    if not account.owns(repo):
        raise Refused(403, "You don't have the rights to change %s" % repo)


def need_grant(repository, account):
    """Files of a gated repository are for those who were let in; its listing is for everybody."""
    if not repository.gated or (account and account.name in repository.granted):
        return
    text = "Access to model %s is restricted" % repository.id
    if account is None:
        raise Refused(401, text + ". You must have access to it and be authenticated to access it. Please log in.",
                      "GatedRepo")
    raise Refused(403, text + " and you are not in the authorized list. Visit the model's page to ask for access.",
                  "GatedRepo")


def moved(location, status=302, headers=None):
    verb = "Found" if status == 302 else "Temporary Redirect"
    return Reply(status, ("%s. Redirecting to %s" % (verb, location)).encode(),
                 {"Content-Type": "text/plain; charset=utf-8", "Location": location, **(headers or {})})
