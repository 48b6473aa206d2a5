"""Commands on optical flow."""
