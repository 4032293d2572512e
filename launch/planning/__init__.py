"""Before anything is trained: how long each way would take here, and how much memory."""
