"""What every service is made of: configuration, lifecycle, health, authorisation, telemetry."""
