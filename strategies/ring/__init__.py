"""K/V travels around a ring, one hop per block of attention."""
