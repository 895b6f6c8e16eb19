"""Pages that are one file: what their scripts, styles and data have to be to load nothing."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from unweave import __version__


def environment() -> Environment:
    """Templates of the folder `page`, every text escaped."""
    return Environment(
        loader=FunctionLoader(read_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )


def render_page(
    template: str, scripts: Sequence[str], data: Mapping[str, Any], **values: Any
) -> str:
    """A page with its style sheet, scripts, plotly and data inside.

    Args:
        template, scripts: Names of files of the folder `page`.
        data: What the scripts draw.
        values: What else the template shows.
    """
    script = "(() => {\n'use strict';\n" + "\n".join(map(read_asset, scripts)) + "\n})();"
    style, library = read_asset("style.css"), get_plotlyjs()
    return (
        environment()
        .get_template(template)
        .render(
            version=__version__,
            policy=policy([library, script], [style, *library_styles(library)]),
            style=Markup(style),
            data=Markup(script_json(data)),
            library=Markup(library),
            script=Markup(script),
            **values,
        )
    )


def read_asset(name: str) -> str:
    """A template, script or style sheet of the folder `page`."""
    return resources.files("unweave.report").joinpath("page", name).read_text("utf-8")


def policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """A content security policy that allows these texts and nothing else."""
    allowed = {"script-src": scripts, "style-src": styles}
    rules = [f"{kind} {' '.join(map(_hash, texts))}" for kind, texts in allowed.items()]
    # Plotly draws heatmaps as images in data URLs, and saves a figure through a blob of the page.
    rules += ["img-src data: blob:", "base-uri 'none'", "form-action 'none'"]
    return "; ".join(["default-src 'none'", *rules])


def library_styles(library: str) -> list[str]:
    """The style elements that plotly makes as it starts.

    One is empty when it is made and filled rule by rule, which a policy does not forbid; the other
    is the fixed sheet of its maps. Allowing their hashes spares 'unsafe-inline'.
    """
    sheets = re.findall(r"\.textContent=(['\"`])(\.maplibregl[^\\]*?)\1", library)
    return ["", *(sheet for _, sheet in sheets)]


def script_json(record: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element around it."""
    text = json.dumps(record, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
