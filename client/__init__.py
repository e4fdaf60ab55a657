"""The hospital: its policy, its ledger at work, and the Flower ClientApp that answers the server's messages."""
