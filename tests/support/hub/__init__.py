"""The parts of tests/support/hub_server.py: a server that speaks the Hugging Face Hub's protocol.

    objects      contents, git blobs, LFS pointers, tree and commit ids as git computes them
    repository   commits, branches, pull requests of one repository
    wire         HTTP: requests, replies, ranges, the log
    faults       what goes wrong on request
    routes       which function answers which path; who may see and change what
    listing, resolving, changing, pulls, large_files    the endpoints
    storage      the other host: signed links to read and to write large objects

Facts: the Hub's public documentation, and what the official client (huggingface_hub 2.4.0) sends and expects.
"""
