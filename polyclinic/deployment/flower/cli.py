"""``python -m polyclinic.deployment.flower.cli``: the command ``flwr``, whose calls the key that POLYCLINIC_KEY names signs."""

from __future__ import annotations

from polyclinic.deployment.flower import patch
from polyclinic.deployment.submitters import SigningInterceptor, own_key


def main() -> None:
    """flwr's own arguments. Raises ConfigError where POLYCLINIC_KEY names no key."""
    from flwr.cli import utils
    from flwr.cli.app import app

    if key := own_key():
        # It comes first among the client's interceptors, none of which changes what is sent.
        patch(utils, "CliClientHttpInterceptor", lambda _: lambda: SigningInterceptor(key), "signed calls")
    app()


if __name__ == "__main__":
    main()
