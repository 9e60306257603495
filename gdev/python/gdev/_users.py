"""Users, and who may use a virtual GPU."""

from __future__ import annotations

import pwd
from typing import Final

# The owner of a virtual GPU that everybody may use: all_users in gdev/protocol/messages.hpp.
ALL_USERS: Final = 2**64 - 1
EVERYBODY: Final = "everybody"


def user_name(number: int) -> str:
    """Returns a user's name, or the number if it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def users_of(owner: int) -> str:
    """Returns who may use what a user, or ALL_USERS, owns."""
    return EVERYBODY if owner == ALL_USERS else user_name(owner)


def owner_of(users: str) -> int:
    """Returns the owner for a user's name or number, or for EVERYBODY. Raises ValueError."""
    if users == EVERYBODY:
        return ALL_USERS
    if users.isdecimal():
        return int(users)
    try:
        return pwd.getpwnam(users).pw_uid
    except KeyError:
        raise ValueError(f"there is no such user: {users}") from None
