"""Translation of Metal text to C++: tokens, rewrites, and complete translation units."""
