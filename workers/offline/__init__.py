"""The offline stand-in: a local OpenAI-compatible endpoint that words what it is given, and nothing else.

``python -m workers.offline --port 0`` prints its url. It is no model: it reads the data in the prompt, counts it and
says so in fixed words. Guarantees: the same request gets the same answer; it names itself ``offline-stand-in`` in every
answer; it never authors a finding, a verdict in favour, or a tool call.
"""

NAME = "offline-stand-in"
FINGERPRINT = "fp_offline_stand_in"
