"""Azure LLM inference traces of 2023 and 2024.

Data: https://github.com/Azure/AzurePublicDataset (AzureLLMInferenceDataset2023.md and 2024.md, CC-BY-4.0;
Patel et al., "Splitwise", ISCA 2024). The files have CRLF line ends, seven fractional digits (100 ns), no line
end after the last row; those of 2024 carry a time zone and drop the fraction where it is zero.

The rows have no prefix data and no client: prefill computes whole prompts, each row is a session of one turn.
"""

from __future__ import annotations

from traffic.readers.rows import Column, Format

AZURE = Format(
    "azure",
    ("csv",),
    (
        Column("TIMESTAMP", "at_ns", "stamp"),
        Column("ContextTokens", "input_tokens"),
        Column("GeneratedTokens", "output_tokens"),
    ),
    "rows of the form TIMESTAMP,ContextTokens,GeneratedTokens, for example 2023-11-16 18:17:03.9799600,4808,10",
)
