"""Print boards/<name>/board.toml as CMake set() commands: python3 board_toml.py FILE."""

import sys
import tomllib

TICK_UNITS = {"none": 0, "instructions": 1, "cycles": 2, "microseconds": 3}


def main(path: str) -> None:
    """Print one line per fact that the firmware needs."""
    with open(path, "rb") as f:
        board = tomllib.load(f)
    for key in ("ram_bytes", "flash_bytes", "firmware_bytes", "stack_bytes", "rx_ring_bytes"):
        print(f"set(MG_{key.upper()} {board[key]})")
    print(f"set(MG_CHECKPOINT_BYTES {board.get('checkpoint_bytes', 0)})")
    print(f"set(MG_BOARD_NAME {board['name']})")
    print(f"set(MG_TICK_UNIT {TICK_UNITS[board['tick']['unit']]})")
    print(f"set(MG_TICK_MUL {board['tick']['mul']})")
    print(f"set(MG_TICK_DIV {board['tick']['div']})")


main(sys.argv[1])
