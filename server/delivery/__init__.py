"""From committed events to readers: live streams, other replicas' streams, stored responses and lists."""
