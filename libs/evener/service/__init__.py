"""What every service is built from: configuration, lifecycle, health, authorisation, telemetry."""
