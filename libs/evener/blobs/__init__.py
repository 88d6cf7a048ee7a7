"""The content-addressed blob store (obstore), and the claim check that keeps records small."""
