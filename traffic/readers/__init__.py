"""Readers of traces and logs: one module a format, all as streams of `TraceRow` in constant memory."""
