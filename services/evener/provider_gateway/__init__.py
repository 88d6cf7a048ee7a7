"""The provider_gateway service."""
