"""Commands that make runs, look at them, and attack, judge and draw from what they made."""
