# SPDX-License-Identifier: Apache-2.0
"""The description of the options in capi/options.toml, as the writers of the languages read it."""

import textwrap
import tomllib

WIDTH = 100

TYPES = {
    "deadline", "duration", "enum", "event", "flag", "handle", "index", "reserved", "text", "texts", "u32",
    "u64",
}  # fmt: skip
_INITIALISMS = {"ack": "ACK", "gid": "GID", "gpu": "GPU", "nics": "NICs", "ppm": "PPM"}


class Option:
    """One option, which is a field of its struct."""

    def __init__(self, struct, field, said, words):
        self.struct = struct
        self.field = field
        self.type = said.get("type", "handle" if "c" in said else "text")
        if self.type not in TYPES:
            raise ValueError(f"{struct}.{field}: type {self.type!r} is none of {sorted(TYPES)}")
        self.flag = said.get("flag")
        self._said = said
        self._words = words

    def of(self, language, key, default=""):
        """Returns what is said of the option for one language only."""
        return self._said.get(language, {}).get(key, default)

    def within(self, language):
        return language in self._said.get("languages", ["go", "rust", "python"])

    @property
    def is_value(self):
        return self.type not in ("handle", "reserved")

    def optional(self, language):
        return language in self._said.get("optional", ())

    def name(self, language):
        """Returns the option's name in Python, Rust or Go."""
        name = self.of(language, "name", self.field.removesuffix("_ns"))
        if language != "go":
            return name
        return "".join(_INITIALISMS.get(word, word.capitalize()) for word in name.split("_"))

    def sentences(self, language):
        words = {name: texts.get(language, "") for name, texts in self._words.items()}
        one_text = language == "c" or self.of(language, "type") == "str"
        words["commas"] = ", separated by commas" if one_text else ""
        words["plus_1"] = "" if self.optional(language) or language == "flag" else ", plus 1"
        return self._text(language, "doc").format(**words)

    def default(self, language):
        return self._text(language, "default")

    def _text(self, language, key):
        return " ".join(self.of(language, key, self._said.get(key, "")).split())

    def documentation(self, language):
        """Returns the option's documentation, or "" if there is none."""
        default = self.default(language)
        return self.sentences(language) + (f" Default: {default}." if default else "")


class Struct:
    """The options of one thing."""

    def __init__(self, name, said, words):
        self.name = name
        self.documentation = " ".join(said["doc"].split())
        self.context = said.get("context", False)
        fields = {field: it for field, it in said.items() if isinstance(it, dict)}
        self.options = [Option(name, field, it, words) for field, it in fields.items()]

    @property
    def c_type(self):
        return f"waybill_{self.name}_options_t"

    @property
    def class_name(self):
        return f"{self.name.capitalize()}Options"

    def values(self, language):
        """Returns the options that the language has, and that are not set by code."""
        return [it for it in self.options if it.is_value and it.within(language)]


def read(text):
    """Returns the structs of the description by their names."""
    said = tomllib.loads(text)
    words = said.pop("words")
    return {name: Struct(name, struct, words) for name, struct in said.items()}


def comment(text, prefix):
    """Returns the text as lines that begin with a prefix."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=prefix, subsequent_indent=prefix, break_on_hyphens=False
    )
