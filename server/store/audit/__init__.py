"""Reads for `holdfast audit`: stored responses with all that must agree with them, and orphans."""
