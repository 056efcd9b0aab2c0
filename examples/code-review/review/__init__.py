"""The code review: slices a directory, judges what analysers find, words the result. See README.md beside it."""
