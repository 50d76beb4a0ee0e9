"""Activations of a real model, recorded on the meta device. Needs torch and Transformers.

``building`` makes the model as training would, ``recording`` runs it, ``store`` caches the profile.
"""
