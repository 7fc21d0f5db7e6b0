"""Files within a request: data URLs, text, and PDFs, which are read in a process of their own."""
