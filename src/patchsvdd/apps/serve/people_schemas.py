"""The request and response bodies for users, keys and sessions, as Pydantic models."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from patchsvdd.apps.serve.auth import Role
from patchsvdd.apps.serve.schemas import Answer

PERSON_NAME = r"^\w[\w .@-]{0,99}$"
"""Names of users and keys."""
PersonName = Annotated[str, Field(pattern=PERSON_NAME, examples=["anna"])]
PASSWORD_WORDS = "8 or more characters, or a PIN of 6 or more digits"


class SignInRequest(BaseModel):
    """What a browser sends to open a session: a name and a password or PIN, or an API key."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "anna", "password": "…"}, {"key": "psk_0123456789ab_…"}]},
    )
    key: str | None = Field(default=None, max_length=200)
    name: str | None = Field(default=None, max_length=200)
    password: str | None = Field(default=None, max_length=200)

    @model_validator(mode="after")
    def _is_one_of_both(self) -> SignInRequest:
        named = (self.name is not None, self.password is not None)
        if named != ((True, True) if self.key is None else (False, False)):
            raise ValueError("send either name and password, or key")
        return self


class SignInAnswer(Answer):
    """What one can sign in with."""

    passwords: bool = Field(description="whether there are users; without them, only keys are accepted")


class CallerAnswer(Answer):
    """The client of the request."""

    name: str
    role: Role
    user: bool = Field(description="whether it is a user, who has a password; false for keys and on this machine")
    may: list[Role] = Field(description="the roles that this role includes")
    key_needed: bool
    line: bool = Field(description="whether the service runs a line, which has a page of its own")


class PasswordRequest(BaseModel):
    """A new password of one's own."""

    model_config = ConfigDict(extra="forbid")
    password: str = Field(description="the current one", max_length=200)
    new: str = Field(description=PASSWORD_WORDS, max_length=200)


class NewUserRequest(BaseModel):
    """A user to add."""

    model_config = ConfigDict(extra="forbid")
    name: PersonName
    role: Role = "inspect"
    password: str = Field(description=PASSWORD_WORDS, max_length=200)


class UserChange(BaseModel):
    """Changes of a user; what is left out stays."""

    model_config = ConfigDict(extra="forbid")
    role: Role | None = None
    password: str | None = Field(default=None, description=PASSWORD_WORDS, max_length=200)
    disabled: bool | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> UserChange:
        if self.role is None and self.password is None and self.disabled is None:
            raise ValueError("send role, password or disabled")
        return self


class UserAnswer(Answer):
    """A user."""

    name: str
    role: Role
    created: str
    used: str | None = Field(description="time of the last sign-in")
    disabled: str | None = Field(description="since when the user cannot sign in; null if the user can")


class UsersAnswer(Answer):
    """All users."""

    users: list[UserAnswer]


class NewKeyRequest(BaseModel):
    """An API key to create."""

    model_config = ConfigDict(extra="forbid")
    name: PersonName
    role: Role = "inspect"


class NewKeyAnswer(Answer):
    """A new API key."""

    name: str
    role: Role
    key: str = Field(description="the key, which is not shown again")


class KeyAnswer(Answer):
    """An API key, without its secret."""

    name: str
    role: Role
    created: str
    used: str | None = Field(description="when it was used last, to ten minutes")
    revoked: str | None


class KeysAnswer(Answer):
    """All API keys."""

    keys: list[KeyAnswer]
