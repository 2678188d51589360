#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Verifies a delivery's signature with the reference library of Standard Webhooks.

Reads {"secret": "whsec_…" or plain text, "headers": {…}, "body": "…"} from standard input.
Exit status: 0 if the signature is right, 1 if not (and says why), 2 if that cannot be told.
Needs the package standardwebhooks.
"""

import json
import sys


def cannot_tell(why):
    print(f"verify_webhook.py: {why}", file=sys.stderr)
    return 2


def main():
    try:
        from standardwebhooks import Webhook, WebhookVerificationError
    except ImportError:
        return cannot_tell("the package standardwebhooks is missing")
    try:
        delivery = json.load(sys.stdin)
        secret, headers, body = (delivery[key] for key in ("secret", "headers", "body"))
    except (ValueError, KeyError, TypeError) as e:
        return cannot_tell(f"standard input: {e!r}")
    # The library takes text for base64 and bytes as they are.
    webhook = Webhook(secret if secret.startswith("whsec_") else secret.encode())
    try:
        webhook.verify(body, headers, json_parse=False)
    except (WebhookVerificationError, ValueError) as e:
        print(f"verify_webhook.py: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
