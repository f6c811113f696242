"""What files hold: images, records, examples, indexes."""
