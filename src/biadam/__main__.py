"""The command, also as `python -m biadam`: says what to install where a part is missing."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from .cli import main as command
    except ModuleNotFoundError as error:
        print(
            f"biadam: the command line needs {error.name}, which is not installed: "
            f"pip install 'biadam[cli]'",
            file=sys.stderr,
        )
        raise SystemExit(2) from error
    command()


if __name__ == "__main__":
    main()
