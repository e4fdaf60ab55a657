"""What the server and the hospitals send each other: messages, arrays and how they are made smaller."""
