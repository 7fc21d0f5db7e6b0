"""Input files of a request: text and PDFs in data URLs. PDFs are parsed in a separate process."""
