"""One module a question: each makes a result that is plain enough for JSON."""
