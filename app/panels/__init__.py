"""The dashboard's panels, one file each: pure drawings of an EngineView."""
