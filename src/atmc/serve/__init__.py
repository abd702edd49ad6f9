"""A small local web page and JSON API to try a posterior on: `atmc serve RUN`. Needs the extra `serve`."""
