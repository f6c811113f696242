"""What hvdgan.doctor and hvdgan.bench measure."""
