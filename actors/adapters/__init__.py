"""What implements the ports: models, stores, tools, sandbox, images, workspace."""
