"""What belongs to a hospital: its policy, identity, journal, records and files."""
