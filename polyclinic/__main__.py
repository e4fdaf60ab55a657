"""``python -m polyclinic`` is the ``polyclinic`` command."""

from polyclinic.cli import main

if __name__ == "__main__":
    main()
