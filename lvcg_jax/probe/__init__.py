"""How much a frozen embedding knows: linear probes, fine-tuning, controls."""
