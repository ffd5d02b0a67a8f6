//! What was typed becomes what it means.
