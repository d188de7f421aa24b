"""Which slot gets which unit: what waits, where its partitions are at home, and what an idle slot takes."""
