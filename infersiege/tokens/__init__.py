"""How long synthesised text is in an engine's own tokens, found out once before the load.

The only part of the text side that asks servers. What it finds goes to every worker and into plan.json.
"""

from infersiege.tokens.measure import TextMeasures, measured, text_channel, wholly_synthesised

__all__ = ["TextMeasures", "measured", "text_channel", "wholly_synthesised"]
